"""What finds a law: in a table of measurements, in time series, and what both use."""
