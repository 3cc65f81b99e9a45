"""Names of rules that are generated for several operators."""

import re


def snake_case(operator: str) -> str:
    """Return the name of an operator as it stands in rule names: `greater_or_equal` for `GreaterOrEqual`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operator).lower()
