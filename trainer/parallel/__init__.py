"""How a model is spread over ranks: the layout, and its application."""
