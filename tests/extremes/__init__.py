"""Valid commands and packets with lengths and numbers at their ends, as sequences that follow from a seed."""
