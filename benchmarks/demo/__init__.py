"""Demonstration of the Neural Power Unit, a layer: a law of nature, the paper's arithmetic, the speed here."""
