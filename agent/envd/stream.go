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

// stream sends a process's output from an offset on, and its end. It ends with
// the client, who may come back; the process goes on. The starter is the one
// whose deadline is also the process's.
func (h *Handler) stream(r *http.Request, c *command.Command, from int64, starter bool, out *connect.Stream) error {
	defer c.Attach()()
	follower := c.Follow(from)
	defer follower.Close()
	if err := sendEvent(out, processEvent{Start: &startEvent{c.PID}}); err != nil {
		return err
	}
	out.Flush()
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
				out.Flush()
			}
			follower.Advance(from)
			keepalive.Reset(keepaliveOf(r))
			continue
		}
		unflushed = 0
		out.Flush()
		if more == nil { // sealed: the exit is known
			if c.Exit().TimedOut && starter {
				return context.DeadlineExceeded
			}
			return sendEnd(c.Exit(), out)
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
