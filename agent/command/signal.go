package command

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"space/agent/fault"
	"space/agent/reaper"
	"space/agent/sysno"
)

// signalNames are the numbered names of Linux on every architecture we build for.
var signalNames = [...]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1",
	11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 16: "STKFLT", 17: "CHLD", 18: "CONT", 19: "STOP",
	20: "TSTP", 21: "TTIN", 22: "TTOU", 23: "URG", 24: "XCPU", 25: "XFSZ", 26: "VTALRM", 27: "PROF", 28: "WINCH",
	29: "IO", 30: "PWR", 31: "SYS",
}

const maxSignal = 64

// SignalName is "SIGKILL" for 9; real-time signals are "SIG34" to "SIG64".
func SignalName(s syscall.Signal) string {
	if s > 0 && int(s) < len(signalNames) {
		return "SIG" + signalNames[s]
	}
	return "SIG" + strconv.Itoa(int(s))
}

// ParseSignal reads a signal as JSON has it: 2, "2", "INT", "SIGINT", "SIG34".
func ParseSignal(raw json.RawMessage) (syscall.Signal, error) {
	text := string(raw)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(raw, &text); err != nil {
			text = ""
		}
	}
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= maxSignal {
		return syscall.Signal(n), nil
	}
	for n, known := range signalNames {
		if known != "" && known == name {
			return syscall.Signal(n), nil
		}
	}
	return 0, fault.Invalid("signal", `give a name such as "SIGINT" or a number from 1 to %d`, maxSignal)
}

// ends are the signals that somebody sends who wants an end.
var ends = map[syscall.Signal]bool{
	syscall.SIGHUP: true, syscall.SIGINT: true, syscall.SIGQUIT: true, syscall.SIGKILL: true, syscall.SIGTERM: true,
}

// Signal goes to the command's process group. With a terminal, the signals that
// have keys do what their keys do: they go to the group in the foreground, which
// is where an interactive shell puts its jobs.
func (c *Command) Signal(s syscall.Signal) error {
	err := c.process.WhileAlive(func() error {
		if ends[s] {
			c.endAsked.Store(true)
		}
		if c.Spec.PTY != nil && (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGTSTP) {
			var sent error
			if onDescriptor(c.input.file, func(fd int) { sent = signalForeground(fd, s) }) == nil && sent == nil {
				return nil
			}
		}
		return syscall.Kill(-c.PID, s)
	})
	if err == reaper.ErrGone {
		return c.isFinished()
	}
	return err
}

// Kill ends every process of the command's session with SIGKILL. What has left
// the session on purpose (setsid) lives on. A finished command is left alone.
func (c *Command) Kill() { c.kill(&c.endAsked) }

// kill sets mark if the command was still running.
func (c *Command) kill(mark *atomic.Bool) {
	err := c.process.WhileAlive(func() error {
		mark.Store(true)
		return syscall.Kill(-c.PID, syscall.SIGKILL)
	})
	if err == reaper.ErrGone {
		return
	}
	// The leader and its group are dying. Groups that an interactive shell made
	// remain; they can fork while we look, so look until there is nobody.
	for round := 0; round < 100 && killSession(c.PID); round++ {
		time.Sleep(time.Millisecond)
	}
}

// killSession kills the members of a session and reports whether it found a live one.
func killSession(session int) (found bool) {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || !inSession(pid, session) {
			continue
		}
		// The pid may have passed to another process since: take hold of the
		// process first, then look again, then signal what we hold.
		fd, _, errno := syscall.Syscall(sysno.PidfdOpen, uintptr(pid), 0, 0)
		if errno != 0 {
			continue
		}
		if inSession(pid, session) {
			found = true
			syscall.Syscall6(sysno.PidfdSendSignal, fd, uintptr(syscall.SIGKILL), uintptr(unsafe.Pointer(nil)), 0, 0, 0)
		}
		syscall.Close(int(fd))
	}
	return found
}

// inSession reads /proc/PID/stat: "pid (name) state ppid pgrp session ...". The
// name may hold anything, also parentheses. Zombies do not count.
func inSession(pid, session int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 4 || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	id, err := strconv.Atoi(fields[3])
	return err == nil && id == session
}
