// Package output keeps what a command has printed. All streams of a command
// share one offset space: offset N is the N-th byte the agent read from it,
// whichever stream it came from. The newest bytes are kept, up to a limit;
// readers are independent, never slow the writer down, and are told of a gap
// where they came too late.
package output

import "sync"

// Stream names where bytes came from.
type Stream uint8

const (
	Stdout Stream = iota
	Stderr
	PTY
)

func (s Stream) String() string {
	return [...]string{"stdout", "stderr", "pty"}[s]
}

// BlockSize bounds one block, and so one chunk handed to a reader. Run ends
// must fit 16 bits.
const BlockSize = 32 << 10

// block is a stretch of output. data only grows and is never rewritten, so a
// reader may keep a slice of it without the lock.
type block struct {
	start int64
	data  []byte
	runs  []run
}

// run says which stream the bytes up to end came from.
type run struct {
	end    uint16
	stream Stream
}

func (b *block) end() int64 { return b.start + int64(len(b.data)) }

// cost is the memory the block holds; a run costs four bytes, which matters
// when a program alternates between streams byte by byte.
func (b *block) cost() int64 { return int64(cap(b.data)) + 4*int64(cap(b.runs)) }

// Log is the output of one command.
type Log struct {
	mu      sync.Mutex
	blocks  []*block
	first   int64 // offset of the earliest byte kept
	next    int64 // offset the next byte will get
	limit   int64
	cost    int64
	sealed  bool
	changed chan struct{} // closed at the next change; nil when nobody waits
}

// NewLog makes an empty log that keeps the newest limit bytes (> 0).
func NewLog(limit int64) *Log { return &Log{limit: limit} }

// Append adds bytes. After Seal it does nothing. It returns true when a new
// block was begun, which is when the owner may want to look at the total cost.
func (l *Log) Append(stream Stream, p []byte) (grew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed || len(p) == 0 {
		return false
	}
	for len(p) > 0 {
		last := l.tail()
		if last == nil || len(last.data) == BlockSize {
			last = &block{start: l.next}
			l.blocks = append(l.blocks, last)
			grew = true
		}
		n := BlockSize - len(last.data)
		if n > len(p) {
			n = len(p)
		}
		l.cost -= last.cost()
		last.add(stream, p[:n])
		l.cost += last.cost()
		l.next += int64(n)
		p = p[n:]
	}
	l.forgetBefore(l.next - l.limit)
	l.wake()
	return grew
}

func (l *Log) tail() *block {
	if len(l.blocks) == 0 {
		return nil
	}
	return l.blocks[len(l.blocks)-1]
}

func (b *block) add(stream Stream, p []byte) {
	if want := len(b.data) + len(p); want > cap(b.data) {
		// Doubling, but never past the block: append alone would round up.
		size := 2 * cap(b.data)
		if size < want {
			size = want
		}
		if size > BlockSize {
			size = BlockSize
		}
		grown := make([]byte, len(b.data), size)
		copy(grown, b.data)
		b.data = grown
	}
	b.data = append(b.data, p...)
	end := uint16(len(b.data))
	if n := len(b.runs); n > 0 && b.runs[n-1].stream == stream {
		b.runs[n-1].end = end
	} else {
		b.runs = append(b.runs, run{end, stream})
	}
}

// forgetBefore moves first up to offset and drops the blocks wholly before it.
func (l *Log) forgetBefore(offset int64) {
	if offset <= l.first {
		return
	}
	l.first = offset
	drop := 0
	for drop < len(l.blocks) && l.blocks[drop].end() <= offset {
		l.cost -= l.blocks[drop].cost()
		l.blocks[drop] = nil
		drop++
	}
	l.blocks = l.blocks[drop:]
}

// DropOldest gives up the oldest block, but never the last one. It reports
// whether there was one to give.
func (l *Log) DropOldest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks) < 2 {
		return false
	}
	l.forgetBefore(l.blocks[0].end())
	return true
}

// Seal says that no more output is kept. Readers then come to an end.
func (l *Log) Seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return
	}
	l.sealed = true
	if last := l.tail(); last != nil {
		// Finished commands are kept by the hundred: give back the slack.
		l.cost -= last.cost()
		last.data = append(make([]byte, 0, len(last.data)), last.data...)
		last.runs = append(make([]run, 0, len(last.runs)), last.runs...)
		l.cost += last.cost()
	}
	l.wake()
}

func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Bounds returns the offset of the earliest byte kept and of the next to come.
func (l *Log) Bounds() (first, next int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.next
}

// Cost is the memory the log holds, in bytes.
func (l *Log) Cost() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cost
}
