"""The built-in rules, one file per family; each is data and knows neither the graph nor the solver."""
