"""Equations in tables: `NPURegressor`, its search, its candidates and its report."""
