// Package sysno holds the system call numbers the frozen syscall package of
// the standard library does not name. Numbers from 424 on are the same on every
// architecture; the older ones are in the files beside this one.
package sysno

const (
	// PidfdSendSignal signals the process behind a pidfd (Linux 5.1).
	PidfdSendSignal = 424
	// PidfdOpen gives a descriptor that names one process and never its successor (Linux 5.3).
	PidfdOpen = 434
)
