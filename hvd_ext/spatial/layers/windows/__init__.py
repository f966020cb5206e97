"""Operations that read a window around each cell: convolution, pooling, resizing, padding."""
