"""Bronze rows to mergeable partials: minima, maxima, sums and bits of numbers, and nothing else. A file a table."""
