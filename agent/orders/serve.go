package orders

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
)

// Carry does an order and appends its answer, a line, to what it is given. It
// says whether the connection is to end with that. The context ends when whoever
// gave the order leaves, or says more before it is answered.
type Carry func(ctx context.Context, o Order, answer []byte) (line []byte, last bool)

// Serve carries out the orders that come by conn, one after the other, until the
// other side ends it, says what is no order, or an answer is the last.
func Serve(conn net.Conn, carry Carry) {
	defer conn.Close()
	line, answer := make([]byte, MaxLine), make([]byte, 0, MaxLine)
	for have := 0; ; {
		n, err := conn.Read(line[have:])
		end := bytes.IndexByte(line[have:have+n], '\n')
		if end < 0 {
			if err != nil {
				return
			}
			if have += n; have == len(line) {
				conn.Write(AppendRefused(answer, malformed("an order is too long")))
				return
			}
			continue
		}
		if end+1 != n { // somebody who does not wait for answers
			return
		}
		order, err := Parse(line[:have+end])
		if err != nil {
			conn.Write(AppendRefused(answer, err))
			return
		}
		have = 0
		w := watch{conn: conn}
		said, last := carry(&w, order, answer)
		if !w.end() {
			return
		}
		if _, err := conn.Write(said); err != nil || last {
			return
		}
	}
}

// watch is the context of one order. Only when somebody asks for its end does it
// begin to look for that: most orders are done before.
type watch struct {
	conn net.Conn

	mu   sync.Mutex
	done chan struct{} // closed when the other side has left; nil until somebody asks
	over chan struct{} // closed when nobody looks any more
	left error
}

var past = time.Unix(1, 0)

// Deadline is none: an order has its own.
func (w *watch) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Value is none.
func (w *watch) Value(any) any { return nil }

// Err says why the order's end came, nil if it has not.
func (w *watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// Done is closed when the other side leaves.
func (w *watch) Done() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done == nil {
		w.done, w.over = make(chan struct{}), make(chan struct{})
		go w.look()
	}
	return w.done
}

func (w *watch) look() {
	defer close(w.over)
	var unasked [1]byte
	n, err := w.conn.Read(unasked[:])
	if timeout, ok := err.(net.Error); n == 0 && ok && timeout.Timeout() {
		return // that was end
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = context.Canceled
	close(w.done)
}

// end stops looking, and reports whether the other side is still there and waits.
func (w *watch) end() bool {
	w.mu.Lock()
	looking := w.over
	w.mu.Unlock()
	if looking == nil {
		return true
	}
	w.conn.SetReadDeadline(past)
	<-looking
	w.conn.SetReadDeadline(time.Time{})
	return w.Err() == nil
}
