"""The demonstration: a law of nature, the paper's arithmetic, the speed here."""
