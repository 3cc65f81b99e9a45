"""Names of rules that are made for one operator after another."""

import re


def snake_case(operator: str) -> str:
    """`GreaterOrEqual` as it stands in a rule's name: `greater_or_equal`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operator).lower()
