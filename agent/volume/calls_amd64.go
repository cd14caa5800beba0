package volume

import "syscall"

const sysFstatat = syscall.SYS_NEWFSTATAT
