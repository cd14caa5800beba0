package output

import (
	"bytes"
	"math/rand"
	"sync"
	"testing"
	"time"
)

// model is the obvious log: every byte ever written, and its stream.
type model struct {
	data    []byte
	streams []Stream
}

func (m *model) append(stream Stream, p []byte) {
	m.data = append(m.data, p...)
	for range p {
		m.streams = append(m.streams, stream)
	}
}

// check reads the log from an offset to its end and compares.
func (m *model) check(t *testing.T, l *Log, from int64) {
	t.Helper()
	first, next := l.Bounds()
	if next != int64(len(m.data)) {
		t.Fatalf("next is %d, want %d", next, len(m.data))
	}
	for at := from; ; {
		piece, ok, _ := l.At(at)
		if !ok {
			if at != next && from <= next {
				t.Fatalf("ended at %d of %d", at, next)
			}
			return
		}
		if piece.Offset != at || piece.Next <= at {
			t.Fatalf("asked for %d, got %d to %d", at, piece.Offset, piece.Next)
		}
		if piece.Data == nil {
			if at >= first || piece.Next != first {
				t.Fatalf("gap %d to %d, but the first byte kept is %d", at, piece.Next, first)
			}
		} else {
			if !bytes.Equal(piece.Data, m.data[at:piece.Next]) {
				t.Fatalf("wrong bytes at %d", at)
			}
			for i := at; i < piece.Next; i++ {
				if m.streams[i] != piece.Stream {
					t.Fatalf("byte %d is said to be %v", i, piece.Stream)
				}
			}
		}
		at = piece.Next
	}
}

// Whatever is written in whatever portions, a reader that begins anywhere sees
// each byte kept once, at its offset, and exactly the newest limit bytes are kept.
func TestOffsetsAgainstModel(t *testing.T) {
	for seed := int64(0); seed < 150; seed++ {
		random := rand.New(rand.NewSource(seed))
		limit := 1 + random.Int63n([]int64{10, 1000, 3 * BlockSize}[random.Intn(3)])
		l, m := NewLog(limit), &model{}
		for step := 0; step < 60; step++ {
			portion := make([]byte, random.Intn([]int{3, 300, 2 * BlockSize}[random.Intn(3)]))
			random.Read(portion)
			stream := Stream(random.Intn(3))
			l.Append(stream, portion)
			m.append(stream, portion)
			first, next := l.Bounds()
			if want := next - limit; first != want && !(want < 0 && first == 0) {
				t.Fatalf("seed %d: keeps %d to %d with limit %d", seed, first, next, limit)
			}
			if next > 0 {
				m.check(t, l, random.Int63n(next))
			}
		}
		m.check(t, l, 0)
		l.Seal()
		l.Append(Stdout, []byte("late"))
		m.check(t, l, 0)
		var cost int64
		for _, b := range l.blocks {
			cost += b.cost()
		}
		if cost != l.Cost() {
			t.Fatalf("seed %d: cost is %d, counted %d", seed, cost, l.Cost())
		}
	}
}

func TestWaitingReaderIsWoken(t *testing.T) {
	l := NewLog(1 << 20)
	var wait sync.WaitGroup
	for i := 0; i < 4; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			var got []byte
			for at := int64(0); ; {
				piece, ok, more := l.At(at)
				if ok {
					got = append(got, piece.Data...)
					at = piece.Next
				} else if more == nil {
					break
				} else {
					<-more
				}
			}
			if len(got) != 1000 {
				t.Errorf("got %d bytes", len(got))
			}
		}()
	}
	for i := 0; i < 1000; i++ {
		l.Append(Stream(i%2), []byte{byte(i)})
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	l.Seal()
	wait.Wait()
}

func TestMemoryIsBounded(t *testing.T) {
	l := NewLog(1 << 20)
	for i := 0; i < 5<<20; i++ { // the worst case: every byte a run of its own
		l.Append(Stream(i%2), []byte{1})
	}
	if cost := l.Cost(); cost > 6*(1<<20+BlockSize) {
		t.Errorf("1 MiB of output costs %d bytes", cost)
	}
	small := NewLog(1 << 20)
	small.Append(Stdout, []byte("hello"))
	small.Seal()
	if cost := small.Cost(); cost > 16 {
		t.Errorf("5 bytes cost %d", cost)
	}
}

func TestDropOldestKeepsTheNewest(t *testing.T) {
	l, m := NewLog(1<<20), &model{}
	for i := 0; i < 5; i++ {
		p := bytes.Repeat([]byte{byte(i)}, BlockSize)
		l.Append(Stdout, p)
		m.append(Stdout, p)
	}
	for l.DropOldest() {
		m.check(t, l, 0)
	}
	if first, next := l.Bounds(); next-first != BlockSize {
		t.Errorf("%d bytes are left", next-first)
	}
}
