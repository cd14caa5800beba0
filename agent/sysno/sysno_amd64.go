package sysno

const (
	// FinitModule loads a kernel module from an open file.
	FinitModule = 313
	// Renameat2 is rename with flags.
	Renameat2 = 316
)
