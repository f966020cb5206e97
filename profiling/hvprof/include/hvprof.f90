! Regions and steps that a program in Fortran marks for hvprof:
!
!   use hvprof
!   call hvprof_region_begin('solver', HVPROF_COMPUTE)
!   ...
!   call hvprof_region_end()
!   call hvprof_step()
!
! Regions lie within each other, and each thread has its own. In a process that is not recorded
! these calls do nothing. Compile this file with the program: it needs no library.
module hvprof
  use, intrinsic :: iso_c_binding
  implicit none
  private
  public :: hvprof_region_begin, hvprof_region_end, hvprof_step
  integer, parameter, public :: HVPROF_COMPUTE = 0, HVPROF_COMMUNICATION = 1, HVPROF_IO = 2, &
                                HVPROF_OTHER = 3

  abstract interface
    subroutine begins(name, kind) bind(c)
      import :: c_char, c_int
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: kind
    end subroutine
    subroutine happens() bind(c)
    end subroutine
  end interface

  interface
    function dlopen(path, mode) bind(c) result(handle)
      import :: c_ptr, c_int
      type(c_ptr), value :: path
      integer(c_int), value :: mode
      type(c_ptr) :: handle
    end function
    function dlsym(handle, symbol) bind(c) result(address)
      import :: c_ptr, c_funptr, c_char
      type(c_ptr), value :: handle
      character(kind=c_char), intent(in) :: symbol(*)
      type(c_funptr) :: address
    end function
  end interface

  procedure(begins), pointer :: region_begin => null()
  procedure(happens), pointer :: region_end => null(), step => null()
  logical :: asked = .false.

contains
  subroutine find_recorder()
    type(c_ptr) :: process
    if (asked) return
    process = dlopen(c_null_ptr, 1_c_int)
    if (c_associated(dlsym(process, 'hvprof_step' // c_null_char))) then
      call c_f_procpointer(dlsym(process, 'hvprof_region_begin' // c_null_char), region_begin)
      call c_f_procpointer(dlsym(process, 'hvprof_region_end' // c_null_char), region_end)
      call c_f_procpointer(dlsym(process, 'hvprof_step' // c_null_char), step)
    end if
    asked = .true.
  end subroutine

  ! This thread enters a part of the program.
  subroutine hvprof_region_begin(name, kind)
    character(len=*), intent(in) :: name
    integer, intent(in) :: kind
    call find_recorder()
    if (associated(region_begin)) call region_begin(trim(name) // c_null_char, int(kind, c_int))
  end subroutine

  ! It leaves the part that it entered last.
  subroutine hvprof_region_end()
    call find_recorder()
    if (associated(region_end)) call region_end()
  end subroutine

  ! A step of the program, such as a time step, ends here, and the next begins.
  subroutine hvprof_step()
    call find_recorder()
    if (associated(step)) call step()
  end subroutine
end module
