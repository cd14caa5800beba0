package command

import (
	"syscall"
	"testing"
	"time"

	"space/agent/output"
)

// held is a pump whose pipe somebody keeps open, with size bytes in it.
func held(t *testing.T, size int, keep func(output.Stream, []byte)) *pump {
	read, write, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(write) })
	const setPipeSize = 1031
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(write), setPipeSize, 1<<20); errno != 0 {
		t.Fatal(errno)
	}
	if n, err := syscall.Write(write, make([]byte, size)); n != size {
		t.Fatal(n, err)
	}
	file, err := ours(read, "test")
	if err != nil {
		t.Fatal(err)
	}
	return startPump(source{file, output.Stdout}, keep)
}

// All that was in the pipe when the process ended is kept, however long it takes.
func TestSettleWaitsForWhatWasWritten(t *testing.T) {
	kept := make(chan int, 100)
	p := held(t, 1<<20, func(_ output.Stream, b []byte) {
		time.Sleep(30 * time.Millisecond) // 32 portions: far longer than settleMax
		kept <- len(b)
	})
	settle([]*pump{p})
	sum := 0
	for len(kept) > 0 {
		sum += <-kept
	}
	if sum != 1<<20 {
		t.Errorf("%d of %d bytes were kept", sum, 1<<20)
	}
}

func TestSettleDoesNotWaitForEver(t *testing.T) {
	begin := time.Now()
	settle([]*pump{held(t, 10, func(output.Stream, []byte) {})})
	if took := time.Since(begin); took < settleQuiet || took > settleMax+settleQuiet {
		t.Errorf("a quiet pipe took %v", took)
	}
}
