package command

import (
	"sync"
	"syscall"
	"time"

	"space/agent/output"
)

// After the main process has ended, a process it left behind may still hold the
// output open (`server &`). The command is finished all the same, once
// everything the main process wrote has been read and the output was quiet for
// settleQuiet, at the latest settleMax after the end. What comes later is read
// and dropped, so that the process left behind neither blocks nor gets SIGPIPE.
const (
	settleQuiet = 200 * time.Millisecond
	settleMax   = 500 * time.Millisecond
)

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// pump moves one descriptor's bytes into the log, for as long as it is open.
type pump struct {
	source
	keep func(output.Stream, []byte)
	eof  chan struct{}

	mu    sync.Mutex // held while reading: bytes are in the pipe or counted
	count int64
	last  time.Time
}

func startPump(s source, keep func(output.Stream, []byte)) *pump {
	p := &pump{source: s, keep: keep, eof: make(chan struct{}), last: time.Now()}
	go p.run()
	return p
}

// run reads until the end of file. A buffer is taken only when there is
// something to read: hundreds of idle commands cost none.
func (p *pump) run() {
	defer close(p.eof)
	defer p.file.Close()
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for open := true; open; {
		err := conn.Read(func(fd uintptr) (ready bool) {
			open, ready = p.read(int(fd))
			return ready
		})
		if err != nil {
			return
		}
	}
}

// read moves what is there now. A terminal whose last user is gone reports EIO.
func (p *pump) read(fd int) (open, ready bool) {
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := syscall.Read(fd, buffer[:])
	switch {
	case n > 0:
		p.keep(p.stream, buffer[:n])
		p.count += int64(n)
		p.last = time.Now()
		return true, true
	case err == syscall.EAGAIN:
		return true, false
	case err == syscall.EINTR:
		return true, true
	}
	return false, true
}

// position is where the bytes written so far end, and what has been read.
func (p *pump) position() (written, read int64, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var waiting int64
	onDescriptor(p.file, func(fd int) { waiting = unread(fd) })
	return p.count + waiting, p.count, p.last
}

// settle waits until the output of a process that has just ended is complete.
func settle(pumps []*pump) {
	deadline := time.Now().Add(settleMax)
	targets := make([]int64, len(pumps))
	for i, p := range pumps {
		targets[i], _, _ = p.position()
	}
	for i, p := range pumps {
		for !p.settled(targets[i], deadline) {
			select {
			case <-p.eof:
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

func (p *pump) settled(target int64, deadline time.Time) bool {
	select {
	case <-p.eof:
		return true
	default:
	}
	_, read, last := p.position()
	now := time.Now()
	if read < target {
		// Reading never waits for anybody, so this ends; the margin is for a
		// kernel whose count of waiting bytes includes some we cannot get.
		return now.After(deadline.Add(4 * settleMax))
	}
	ended := deadline.Add(-settleMax)
	return now.After(deadline) || now.Sub(ended) > settleQuiet && now.Sub(last) > settleQuiet
}
