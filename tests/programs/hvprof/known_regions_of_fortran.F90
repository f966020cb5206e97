! Marks regions and steps by the module of hvprof.f90, and leaves sums out by MPI_Pcontrol.
program known_regions_of_fortran
#if defined USE_F08
  use mpi_f08
#elif defined USE_MPI
  use mpi
#endif
  use hvprof
  implicit none
#ifdef MPIF
  include 'mpif.h'
#endif
  integer :: i, code
  double precision :: x(1), y(1)
  x = 1
  call MPI_Init(code)
  do i = 1, 3
    call hvprof_region_begin('solver', HVPROF_COMPUTE)
    call hvprof_region_begin('output', HVPROF_IO)
    call hvprof_region_end()
    call hvprof_region_end()
    call MPI_Allreduce(x, y, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
    call MPI_Pcontrol(0)
    call MPI_Allreduce(x, y, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
    call MPI_Pcontrol(1)
    call hvprof_step()
  end do
  call MPI_Finalize(code)
end program
