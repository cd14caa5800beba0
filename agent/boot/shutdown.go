package boot

import (
	"os"
	"strconv"
	"syscall"
	"time"
)

// termPatience is how long programs have to end by themselves.
const termPatience = 2 * time.Second

// Shutdown ends all programs, writes everything to the disk and resets the
// machine. It does not return.
func Shutdown() {
	syscall.Kill(-1, syscall.SIGTERM) // everybody but process 1
	for deadline := time.Now().Add(termPatience); time.Now().Before(deadline) && anybody(); {
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Kill(-1, syscall.SIGKILL)
	for deadline := time.Now().Add(termPatience); time.Now().Before(deadline) && anybody(); {
		time.Sleep(10 * time.Millisecond)
	}
	syscall.Sync()
	// With nobody left to write, this succeeds and leaves a clean journal.
	syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	Restart()
}

// anybody reports whether a program runs besides this one. Kernel threads and
// zombies have no executable.
func anybody() bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err != nil || pid == 1 {
			continue
		}
		if _, err := os.Readlink("/proc/" + name + "/exe"); err == nil {
			return true
		}
	}
	return false
}
