"""The same log through the rules of several systems, side by side."""
