"""Operations that reduce cells: sums and extremes, normalization, losses."""
