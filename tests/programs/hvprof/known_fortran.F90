! Calls some sixty operations of MPI by one of Fortran's three interfaces (-DMPIF, -DUSE_MPI or
! -DUSE_F08), counts them itself, and writes each rank's counts to the file "counts-RANK".
#ifdef USE_F08
#define HANDLE(kind) type(kind)
#define STATUS type(MPI_Status)
#else
#define HANDLE(kind) integer
#define STATUS integer, dimension(MPI_STATUS_SIZE)
#endif

module counter
  implicit none
  character(len=32) :: names(100) = ''
  integer :: calls(100) = 0
  integer(8) :: sums(100) = 0
contains
  subroutine did(name, bytes)
    character(len=*), intent(in) :: name
    integer, intent(in) :: bytes
    integer :: i
    do i = 1, 100
      if (names(i) == '' .or. names(i) == name) exit
    end do
    names(i) = name
    calls(i) = calls(i) + 1
    sums(i) = sums(i) + bytes
  end subroutine

  subroutine write_counts(rank)
    integer, intent(in) :: rank
    integer :: i
    character(len=16) :: file
    write (file, '(a,i0)') 'counts-', rank
    open (unit=10, file=file)
    do i = 1, 100
      if (names(i) /= '') write (10, '(a,1x,i0,1x,i0)') trim(names(i)), calls(i), sums(i)
    end do
    close (10)
  end subroutine
end module

program known_fortran
#if defined USE_F08
  use mpi_f08
#elif defined USE_MPI
  use mpi
#endif
  use counter
  use, intrinsic :: iso_c_binding, only: c_ptr
  implicit none
#ifdef MPIF
  include 'mpif.h'
#endif
  integer, parameter :: N = 10
  integer :: me, ranks, code, i, provided, index, done, bsend_bytes
  integer :: indices(2)
  logical :: flag
  double precision :: x(4 * N), y(4 * N), buffer(1000)
  integer, allocatable :: counts(:), places(:), bytes_apart(:)
  HANDLE(MPI_Comm) :: world, half, grid
  HANDLE(MPI_Request) :: request, requests(2)
  HANDLE(MPI_Datatype) :: pair, absolute
  HANDLE(MPI_Datatype), allocatable :: types(:)
  HANDLE(MPI_Win) :: window
  HANDLE(MPI_Message) :: message
  HANDLE(MPI_Group) :: group
  STATUS :: status_of_one
#ifdef USE_F08
  type(c_ptr) :: detached
#else
  double precision :: detached(1000)
#endif
#ifdef FILES
  HANDLE(MPI_File) :: file
#endif
  integer(kind=MPI_ADDRESS_KIND) :: place(1), target, bytes_of_window

  x = 1; y = 0
  call MPI_Init_thread(MPI_THREAD_SINGLE, provided, code)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, code)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
  allocate (counts(ranks), places(ranks), bytes_apart(ranks), types(ranks))
  counts = 2
  places = [(2 * i, i = 0, ranks - 1)]
  bytes_apart = 8 * places
  types = MPI_DOUBLE_PRECISION

  call MPI_Comm_dup(MPI_COMM_WORLD, world, code); call did('comm_dup', 0)
  call MPI_Comm_set_name(world, 'a name with blanks', code)
  call MPI_Comm_split(world, mod(me, 2), me, half, code); call did('comm_split', 0)
  call MPI_Barrier(half, code); call did('barrier', 0)
  call MPI_Comm_free(half, code); call did('comm_free', 0)
  call MPI_Comm_group(world, group, code); call did('comm_group', 0)
  call MPI_Group_free(group, code); call did('group_free', 0)

  call MPI_Barrier(world, code); call did('barrier', 0)
  call MPI_Bcast(x, N, MPI_DOUBLE_PRECISION, 0, world, code); call did('bcast', 8 * N)
  call MPI_Reduce(x, y, N, MPI_DOUBLE_PRECISION, MPI_SUM, 0, world, code); call did('reduce', 8 * N)
  call MPI_Allreduce(x, y, N, MPI_DOUBLE_PRECISION, MPI_SUM, world, code)
  call did('allreduce', 8 * N)
  call MPI_Allreduce(MPI_IN_PLACE, y, 3, MPI_DOUBLE_PRECISION, MPI_MAX, world, code)
  call did('allreduce', 24)
  call MPI_Scan(x, y, N, MPI_DOUBLE_PRECISION, MPI_SUM, world, code); call did('scan', 8 * N)
  call MPI_Exscan(x, y, N, MPI_DOUBLE_PRECISION, MPI_SUM, world, code); call did('exscan', 8 * N)
  call MPI_Gather(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, 0, world, code)
  call did('gather', 16)
  if (me == 0) then
    call MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, 2, MPI_DOUBLE_PRECISION, 0, world, code)
  else
    call MPI_Gather(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, 0, world, code)
  end if
  call did('gather', 16)
  if (me == 0) then
    call MPI_Gatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, counts, places, MPI_DOUBLE_PRECISION, &
                     0, world, code)
  else
    call MPI_Gatherv(x, 2, MPI_DOUBLE_PRECISION, y, counts, places, MPI_DOUBLE_PRECISION, 0, &
                     world, code)
  end if
  call did('gatherv', 16)
  if (me == 0) then
    call MPI_Scatter(x, 2, MPI_DOUBLE_PRECISION, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, 0, world, code)
  else
    call MPI_Scatter(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, 0, world, code)
  end if
  call did('scatter', 16)
  call MPI_Scatterv(x, counts, places, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, 0, &
                    world, code)
  call did('scatterv', 16)
  call MPI_Allgather(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, world, code)
  call did('allgather', 16 * ranks)
  call MPI_Allgatherv(x, 2, MPI_DOUBLE_PRECISION, y, counts, places, MPI_DOUBLE_PRECISION, world, &
                      code)
  call did('allgatherv', 16 * ranks)
  call MPI_Alltoall(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, world, code)
  call did('alltoall', 16 * ranks)
  call MPI_Alltoallv(x, counts, places, MPI_DOUBLE_PRECISION, y, counts, places, &
                     MPI_DOUBLE_PRECISION, world, code)
  call did('alltoallv', 16 * ranks)
  call MPI_Alltoallv(MPI_IN_PLACE, places, places, MPI_DATATYPE_NULL, y, counts, places, &
                     MPI_DOUBLE_PRECISION, world, code)
  call did('alltoallv', 16 * ranks)
  call MPI_Alltoallw(x, counts, bytes_apart, types, y, counts, bytes_apart, types, world, code)
  call did('alltoallw', 16 * ranks)
  call MPI_Reduce_scatter(x, y, counts, MPI_DOUBLE_PRECISION, MPI_SUM, world, code)
  call did('reduce_scatter', 16 * ranks)
  call MPI_Reduce_scatter_block(x, y, 2, MPI_DOUBLE_PRECISION, MPI_SUM, world, code)
  call did('reduce_scatter_block', 16 * ranks)

  call MPI_Iallreduce(x, y, N, MPI_DOUBLE_PRECISION, MPI_SUM, world, request, code)
  call did('iallreduce', 8 * N)
  call MPI_Wait(request, MPI_STATUS_IGNORE, code); call did('wait', 0)
  call MPI_Ibcast(x, N, MPI_DOUBLE_PRECISION, 0, world, request, code); call did('ibcast', 8 * N)
  flag = .false.
  do while (.not. flag)
    call MPI_Test(request, flag, MPI_STATUS_IGNORE, code); call did('test', 0)
  end do
  call MPI_Ibarrier(world, request, code); call did('ibarrier', 0)
  call MPI_Wait(request, status_of_one, code); call did('wait', 0)

  call MPI_Type_contiguous(2, MPI_DOUBLE_PRECISION, pair, code); call did('type_contiguous', 0)
  call MPI_Type_commit(pair, code); call did('type_commit', 0)
  call MPI_Bcast(x, 3, pair, 0, world, code); call did('bcast', 48)
  call MPI_Get_address(x, place(1), code)
  call MPI_Type_create_hindexed(1, [4], place, MPI_DOUBLE_PRECISION, absolute, code)
  call did('type_create_hindexed', 0)
  call MPI_Type_commit(absolute, code); call did('type_commit', 0)
  call MPI_Bcast(MPI_BOTTOM, 1, absolute, 0, world, code); call did('bcast', 32)
  call MPI_Type_free(absolute, code); call did('type_free', 0)
  call MPI_Type_free(pair, code); call did('type_free', 0)

  if (me == 0) then
    call MPI_Send(x, N, MPI_DOUBLE_PRECISION, 1, 1, world, code); call did('send', 8 * N)
    call MPI_Ssend(x, N, MPI_DOUBLE_PRECISION, 1, 2, world, code); call did('ssend', 8 * N)
    call MPI_Pack_size(N, MPI_DOUBLE_PRECISION, world, bsend_bytes, code)
    bsend_bytes = bsend_bytes + MPI_BSEND_OVERHEAD
    call MPI_Buffer_attach(buffer, bsend_bytes, code); call did('buffer_attach', 0)
    call MPI_Bsend(x, N, MPI_DOUBLE_PRECISION, 1, 3, world, code); call did('bsend', 8 * N)
    call MPI_Isend(x, 1, MPI_DOUBLE_PRECISION, 1, 4, world, requests(1), code); call did('isend', 8)
    call MPI_Issend(x, 1, MPI_DOUBLE_PRECISION, 1, 5, world, requests(2), code)
    call did('issend', 8)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, code); call did('waitall', 0)
    call MPI_Isend(x, 1, MPI_DOUBLE_PRECISION, 1, 6, world, requests(1), code); call did('isend', 8)
    call MPI_Waitany(1, requests, index, status_of_one, code); call did('waitany', 0)
    call MPI_Isend(x, 1, MPI_DOUBLE_PRECISION, 1, 7, world, requests(1), code); call did('isend', 8)
    call MPI_Waitsome(1, requests, done, indices, MPI_STATUSES_IGNORE, code); call did('waitsome', 0)
    call MPI_Send_init(x, N, MPI_DOUBLE_PRECISION, 1, 8, world, request, code)
    call did('send_init', 0)
    call MPI_Start(request, code); call did('start', 8 * N)
    call MPI_Wait(request, MPI_STATUS_IGNORE, code); call did('wait', 0)
    call MPI_Request_free(request, code); call did('request_free', 0)
    call MPI_Send(x, 1, MPI_DOUBLE_PRECISION, 1, 9, world, code); call did('send', 8)
    call MPI_Send(x, 1, MPI_DOUBLE_PRECISION, 1, 10, world, code); call did('send', 8)
  else if (me == 1) then
    call MPI_Recv(y, N, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 1, world, MPI_STATUS_IGNORE, code)
    call did('recv', 8 * N)
    call MPI_Recv(y, N, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 2, world, status_of_one, code)
    call did('recv', 8 * N)
    call MPI_Recv(y, N, MPI_DOUBLE_PRECISION, 0, 3, world, MPI_STATUS_IGNORE, code)
    call did('recv', 8 * N)
    call MPI_Irecv(y, 1, MPI_DOUBLE_PRECISION, 0, 4, world, requests(1), code); call did('irecv', 8)
    call MPI_Irecv(y(2), 1, MPI_DOUBLE_PRECISION, 0, 5, world, requests(2), code)
    call did('irecv', 8)
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, code); call did('waitall', 0)
    call MPI_Irecv(y, 1, MPI_DOUBLE_PRECISION, 0, 6, world, requests(1), code)
    call did('irecv', 8)
    call MPI_Waitany(1, requests, index, MPI_STATUS_IGNORE, code); call did('waitany', 0)
    call MPI_Irecv(y, 1, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 7, world, request, code)
    call did('irecv', 8)
    call MPI_Wait(request, MPI_STATUS_IGNORE, code); call did('wait', 0)
    call MPI_Recv_init(y, N, MPI_DOUBLE_PRECISION, 0, 8, world, requests(1), code)
    call did('recv_init', 0)
    call MPI_Startall(1, requests, code); call did('startall', 8 * N)
    call MPI_Wait(requests(1), MPI_STATUS_IGNORE, code); call did('wait', 0)
    call MPI_Request_free(requests(1), code); call did('request_free', 0)
    call MPI_Probe(MPI_ANY_SOURCE, 9, world, status_of_one, code); call did('probe', 0)
    call MPI_Recv(y, 1, MPI_DOUBLE_PRECISION, 0, 9, world, MPI_STATUS_IGNORE, code)
    call did('recv', 8)
    flag = .false.
    do while (.not. flag)
      call MPI_Iprobe(0, 10, world, flag, MPI_STATUS_IGNORE, code); call did('iprobe', 0)
    end do
    call MPI_Mprobe(0, 10, world, message, MPI_STATUS_IGNORE, code); call did('mprobe', 0)
    call MPI_Mrecv(y, 1, MPI_DOUBLE_PRECISION, message, MPI_STATUS_IGNORE, code); call did('mrecv', 8)
  end if
  call MPI_Sendrecv(x, 2, MPI_DOUBLE_PRECISION, mod(me + 1, ranks), 11, y, 2, &
                    MPI_DOUBLE_PRECISION, mod(me + ranks - 1, ranks), 11, world, &
                    MPI_STATUS_IGNORE, code)
  call did('sendrecv', 16)
  call MPI_Sendrecv_replace(x, 2, MPI_DOUBLE_PRECISION, mod(me + 1, ranks), 12, &
                            mod(me + ranks - 1, ranks), 12, world, status_of_one, code)
  call did('sendrecv_replace', 16)

  call MPI_Cart_create(world, 1, [ranks], [.true.], .false., grid, code); call did('cart_create', 0)
  call MPI_Neighbor_allgather(x, 2, MPI_DOUBLE_PRECISION, y, 2, MPI_DOUBLE_PRECISION, grid, code)
  call did('neighbor_allgather', 32)

  bytes_of_window = 8 * N
  target = 0
  call MPI_Win_create(y, bytes_of_window, 8, MPI_INFO_NULL, world, window, code)
  call did('win_create', 0)
  call MPI_Win_fence(0, window, code); call did('win_fence', 0)
  call MPI_Put(x, 2, MPI_DOUBLE_PRECISION, mod(me + 1, ranks), target, 2, MPI_DOUBLE_PRECISION, &
               window, code)
  call did('put', 16)
  call MPI_Win_fence(0, window, code); call did('win_fence', 0)
  call MPI_Get(x, 2, MPI_DOUBLE_PRECISION, mod(me + 1, ranks), target, 2, MPI_DOUBLE_PRECISION, &
               window, code)
  call did('get', 16)
  call MPI_Win_fence(0, window, code); call did('win_fence', 0)
  call MPI_Accumulate(x, 2, MPI_DOUBLE_PRECISION, mod(me + 1, ranks), target, 2, &
                      MPI_DOUBLE_PRECISION, MPI_SUM, window, code)
  call did('accumulate', 16)
  call MPI_Win_fence(0, window, code); call did('win_fence', 0)
  call MPI_Win_free(window, code); call did('win_free', 0)

#ifdef FILES
  call MPI_File_open(world, 'data of all ranks', MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_INFO_NULL, &
                     file, code)
  call did('file_open', 0)
  place = 80 * me
  call MPI_File_write_at_all(file, place(1), x, N, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, code)
  call did('file_write_at_all', 8 * N)
  call MPI_File_close(file, code); call did('file_close', 0)
#endif
#ifdef USE_F08
  call MPI_Barrier(world); call did('barrier', 0)
#endif
  if (me == 0) then
    call MPI_Buffer_detach(detached, bsend_bytes, code); call did('buffer_detach', 0)
  end if
  call write_counts(me)
  call MPI_Finalize(code)
end program
