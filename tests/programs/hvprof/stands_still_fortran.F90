! Stands still in the way that is asked for, or sums over all ranks until it is ended.
program stands_still_fortran
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
  character(len=16) :: how
  integer :: me, i, code
  integer(c_int) :: slept
  double precision :: x(1000), y(1000)
  x = 1
  call get_command_argument(1, how)
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, code)
  do i = 1, 5
    call MPI_Allreduce(x, y, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  end do
  if (how == 'sleeps' .and. me == 1) then
    do
      slept = usleep(100000_c_int)
    end do
  else if (how == 'mismatch' .and. me == 1) then
    call MPI_Bcast(x, 1000, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, code)
  else if (how == 'circle') then
    call MPI_Recv(x, 1000, MPI_DOUBLE_PRECISION, 1 - me, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, code)
  end if
  do
    if (me == 1) slept = usleep(20000_c_int)
    call MPI_Allreduce(x, y, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  end do
end program
