"""What everything stands on: types, interfaces, errors, randomness."""
