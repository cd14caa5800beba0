package envd

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"space/agent/command"
	"space/agent/connect"
	"space/agent/output"
)

// defaultKeepalive is how long a stream is silent at most if its client does not say.
const defaultKeepalive = 90 * time.Second

// maxKeepaliveS bounds what a client says, in seconds.
const maxKeepaliveS = 86400

// keepaliveOf reads how often the client wants to hear that the stream lives.
func keepaliveOf(r *http.Request) time.Duration {
	n, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > maxKeepaliveS {
		return defaultKeepalive
	}
	return time.Duration(n) * time.Second
}

// maxUnflushed bounds what is sent without a flush while there is more, in bytes.
const maxUnflushed = 128 << 10

// stream sends a process's output and its end. It ends with the client, who
// may come back and then hears first what was printed meanwhile; the process
// goes on. The starter is the one whose deadline is also the process's.
func (h *Handler) stream(r *http.Request, c *command.Command, starter bool, out *connect.Stream) error {
	defer c.Attach()()
	follower, from := c.Follow()
	defer follower.Close()
	// What is flushed to a client who is there counts as heard, even if it
	// leaves at once: most do so because of what they heard.
	flush := func() bool {
		there := r.Context().Err() == nil
		out.Flush()
		if there {
			follower.Heard(from)
		}
		return there
	}
	if err := sendEvent(out, processEvent{Start: &startEvent{c.PID}}); err != nil {
		return err
	}
	flush()
	keepalive := time.NewTicker(keepaliveOf(r))
	defer keepalive.Stop()
	unflushed := 0
	for {
		piece, ok, more := c.Output.At(from)
		if ok {
			if err := sendPiece(out, piece); err != nil {
				return err
			}
			from = piece.Next
			if unflushed += len(piece.Data); unflushed >= maxUnflushed {
				unflushed = 0
				flush()
			}
			follower.Advance(from)
			keepalive.Reset(keepaliveOf(r))
			continue
		}
		unflushed = 0
		flush()
		if more == nil { // sealed: the exit is known
			if c.Exit().TimedOut && starter {
				follower.Told()
				return context.DeadlineExceeded
			}
			if err := sendEnd(c.Exit(), out); err != nil {
				return err
			}
			if flush() {
				follower.Told()
			}
			return nil
		}
		select {
		case <-more:
		case <-keepalive.C:
			if err := sendEvent(out, processEvent{Keepalive: &empty{}}); err != nil {
				return err
			}
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

func sendEvent(out *connect.Stream, event processEvent) error {
	return out.Send(processMessage{event})
}

func sendPiece(out *connect.Stream, piece output.Piece) error {
	if piece.Data == nil {
		return connect.Errorf(connect.DataLoss, "%d bytes of output are lost: they were read too slowly", piece.Next-piece.Offset)
	}
	data := &dataEvent{}
	switch piece.Stream {
	case output.Stdout:
		data.Stdout = piece.Data
	case output.Stderr:
		data.Stderr = piece.Data
	case output.PTY:
		data.PTY = piece.Data
	}
	return sendEvent(out, processEvent{Data: data})
}

// sendEnd says how the process ended, in the words of Go's os.ProcessState.
func sendEnd(exit *command.Exit, out *connect.Stream) error {
	end := endEvent{ExitCode: -1, Exited: exit.Status.Exited()}
	if exit.Code != nil {
		end.ExitCode, end.Status = *exit.Code, "exit status "+strconv.Itoa(*exit.Code)
	} else {
		end.Status = "signal: " + exit.Status.Signal().String()
	}
	if exit.Status.CoreDump() {
		end.Status += " (core dumped)"
	}
	if exit.Code == nil || *exit.Code != 0 {
		end.Error = end.Status
	}
	return sendEvent(out, processEvent{End: &end})
}
