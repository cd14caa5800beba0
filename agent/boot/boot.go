// Package boot turns process 1 of an initramfs into process 1 of the sandbox.
// The initramfs holds this program as /init and the virtio modules; the root
// file system on /dev/vda may be any, with a shell in it or without. Nothing
// of it is executed here.
//
// Everything runs as root because it is process 1; the machine around it is
// the boundary.
package boot

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Addresses of every sandbox; the slot outside translates them to its own.
const (
	Address = "169.254.0.21"
	Gateway = "169.254.0.22"
)

const (
	rootDevice = "/dev/vda"
	newRoot    = "/newroot"
	// deviceWait bounds the wait for a disk or network card after its module was loaded.
	deviceWait = 10 * time.Second
)

// step is one part of booting. A failed one ends the machine.
type step struct {
	name string
	run  func() error
}

// Run boots the machine. On return the program is in the sandbox's root, with
// network and without a name (that is /init's to give).
func Run() error {
	ignoreSignals()
	for _, s := range []step{
		{"mount kernel file systems", mountKernel},
		{"open console", openConsole},
		{"load modules", loadModules},
		{"mount root", mountRoot},
		{"enter root", enterRoot},
		{"mount runtime file systems", mountRuntime},
		{"mask boot id", maskBootID},
		{"set limits", setLimits},
		{"bring up network", setUpNetwork},
		{"write resolver configuration", writeResolver},
	} {
		if err := s.run(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// Fatal says why there will be no sandbox, and ends the machine. The reason is
// the last line of the console, which is where the worker looks for it.
func Fatal(err error) {
	Log("boot failed: %v", err)
	time.Sleep(50 * time.Millisecond) // the serial port is slower than the reset
	Restart()
}

// Restart resets the machine; the VMM is told to exit on that. Only a failing
// reboot(2) returns, and process 1 must not end: the kernel would panic.
func Restart() {
	syscall.Sync()
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_RESTART)
	select {}
}

// Log writes a line to the console.
func Log(format string, args ...any) {
	line := "space-agent: " + fmt.Sprintf(format, args...) + "\n"
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|syscall.O_NOCTTY, 0)
	if err != nil {
		os.Stderr.WriteString(line)
		return
	}
	console.WriteString(line)
	console.Close()
}

// ignoreSignals keeps process 1 alive. The kernel delivers to it only what it
// handles, but the Go runtime handles nearly all, by exiting. They are received
// and dropped rather than ignored, because what is ignored stays ignored in
// the programs we start. SIGCHLD is the reaper's, SIGURG the scheduler's.
func ignoreSignals() {
	dropped := make(chan os.Signal, 1)
	for n := syscall.Signal(1); n <= 64; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG:
		default:
			signal.Notify(dropped, n)
		}
	}
	go func() {
		for range dropped {
		}
	}()
}
