! Rank 1 sleeps 50 ms before each of 20 sums over all ranks.
program late_fortran
#if defined USE_F08
  use mpi_f08
#elif defined USE_MPI
  use mpi
#endif
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
#ifdef MPIF
  include 'mpif.h'
#endif
  interface
    function usleep(microseconds) bind(c, name='usleep') result(code)
      import :: c_int
      integer(c_int), value :: microseconds
      integer(c_int) :: code
    end function
  end interface
  integer :: me, i, code
  integer(c_int) :: slept
  double precision :: x(1024), y(1024)
  x = 1
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, code)
  do i = 1, 20
    if (me == 1) slept = usleep(50000_c_int)
    call MPI_Allreduce(x, y, 1024, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  end do
  call MPI_Finalize(code)
end program
