package command

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"space/agent/fault"
)

// input is the writing end of a command's stdin or terminal. One writer at a
// time; the others wait for it, each only as long as its own request lives.
type input struct {
	file     *os.File // nil: started without stdin
	tty      bool
	turn     chan struct{} // holds one token
	finished <-chan struct{}

	// Owned by whoever has the turn.
	closed   bool
	lastByte byte
}

func newInput(s *stdio, finished <-chan struct{}) *input {
	in := &input{file: s.input, tty: s.tty != nil, turn: make(chan struct{}, 1), finished: finished, lastByte: '\n'}
	in.turn <- struct{}{}
	return in
}

// WriteInput copies r to the command's stdin and then, if eof, ends it. A
// command that does not read holds up this call, and nothing else; cancelling
// ctx ends it. Memory use does not depend on what r holds.
func (c *Command) WriteInput(ctx context.Context, r io.Reader, eof bool) error {
	in := c.input
	if in.file == nil {
		return stdinClosed("the command was started without stdin; start it with stdin: true")
	}
	select {
	case <-in.turn: // a blocked writer gives it up when the command finishes
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { in.turn <- struct{}{} }()
	select {
	case <-in.finished:
		return stdinClosed("the command has finished")
	default:
	}
	if in.closed {
		return stdinClosed("stdin has been closed")
	}
	defer in.interruptOn(ctx)()
	if err := in.copy(ctx, r); err != nil {
		return err
	}
	if eof {
		return in.end()
	}
	return nil
}

// interruptOn makes a blocked write return when ctx ends. The returned function undoes it.
func (in *input) interruptOn(ctx context.Context) (undo func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			in.file.SetWriteDeadline(time.Unix(1, 0))
		case <-stop:
		}
	}()
	return func() {
		close(stop)
		<-stopped
		in.file.SetWriteDeadline(time.Time{})
	}
}

func (in *input) copy(ctx context.Context, r io.Reader) error {
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	for {
		n, readErr := r.Read(buffer[:])
		if n > 0 {
			if err := in.write(buffer[:n]); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return fault.New(http.StatusBadRequest, "body_incomplete",
				"the request body ended early; what had arrived was written").Because(readErr)
		}
	}
}

func (in *input) write(p []byte) error {
	_, err := in.file.Write(p)
	if err == nil {
		in.lastByte = p[len(p)-1]
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	// EPIPE: nobody can read it any more. EIO: the terminal has hung up.
	return stdinClosed("the command has closed its stdin or ended").Because(err)
}

// end closes a pipe. A terminal stays open; its reader sees the end of file by
// the character for it, which counts only at the start of a line: after half a
// line the first one merely hands over the half.
func (in *input) end() error {
	if !in.tty {
		in.closed = true
		in.file.Close()
		return nil
	}
	eof := byte(4)
	onDescriptor(in.file, func(fd int) { eof = eofByte(fd) })
	marks := []byte{eof}
	if in.lastByte != '\n' && in.lastByte != '\r' && in.lastByte != eof {
		marks = append(marks, eof)
	}
	return in.write(marks)
}

// close ends the stdin of a finished command, also under a blocked writer. A
// terminal's file is the pump's to close.
func (in *input) close() {
	if in.file != nil && !in.tty {
		in.file.Close()
	}
}

func stdinClosed(detail string) *fault.Fault {
	return fault.New(http.StatusConflict, "stdin_closed", "%s", detail)
}
