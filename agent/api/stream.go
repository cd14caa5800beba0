package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"space/agent/command"
	"space/agent/output"
)

// keepaliveEvery is how long a stream stays silent at most, so that nothing
// between agent and client takes it for dead.
const keepaliveEvery = 15 * time.Second

// flushAfter bounds what is written before a flush while there is more to write.
const flushAfter = 128 << 10

// stream writes a command's output as NDJSON, one object a line, each flushed
// as soon as there is no other to send.
type stream struct {
	w         http.ResponseWriter
	keepalive time.Duration
	line      []byte
	unflushed int
}

func newStream(w http.ResponseWriter, c *command.Command, keepalive time.Duration) *stream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Command-Id", c.ID)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	return &stream{w: w, keepalive: keepalive}
}

func (s *stream) start(c *command.Command) {
	s.line = append(s.line[:0], `{"type":"start","command_id":"`...)
	s.line = append(s.line, c.ID...)
	s.line = append(s.line, `","pid":`...)
	s.line = strconv.AppendInt(s.line, int64(c.PID), 10)
	s.send()
	s.flush()
}

// copy sends the output from an offset on. With follow it goes on until the
// command has finished; without, until what is there has been sent. It returns
// when the client is gone.
func (s *stream) copy(r *http.Request, c *command.Command, from int64, follow bool) {
	idle := time.NewTimer(s.keepalive)
	defer idle.Stop()
	for r.Context().Err() == nil {
		piece, ok, more := c.Output.At(from)
		if ok {
			if !s.piece(piece) {
				return
			}
			from = piece.Next
			continue
		}
		if more == nil { // sealed: the exit is known
			s.exit(c, from)
		}
		s.flush()
		if more == nil || !follow {
			return
		}
		if !idle.Stop() {
			select {
			case <-idle.C:
			default:
			}
		}
		idle.Reset(s.keepalive)
		select {
		case <-more:
		case <-r.Context().Done():
		case <-idle.C:
			s.line = append(s.line[:0], `{"type":"keepalive"`...)
			s.send()
			s.flush()
		}
	}
}

func (s *stream) piece(p output.Piece) (ok bool) {
	if p.Data == nil {
		s.line = append(s.line[:0], `{"type":"gap","offset":`...)
		s.line = strconv.AppendInt(s.line, p.Offset, 10)
		s.line = append(s.line, `,"next_offset":`...)
		s.line = strconv.AppendInt(s.line, p.Next, 10)
		return s.send()
	}
	s.line = append(s.line[:0], `{"type":"`...)
	s.line = append(s.line, p.Stream.String()...)
	s.line = append(s.line, `","offset":`...)
	s.line = strconv.AppendInt(s.line, p.Offset, 10)
	s.line = append(s.line, `,"data":"`...)
	at, size := len(s.line), base64.StdEncoding.EncodedLen(len(p.Data))
	s.line = append(s.line, make([]byte, size)...)
	base64.StdEncoding.Encode(s.line[at:], p.Data)
	s.line = append(s.line, '"')
	return s.send()
}

func (s *stream) exit(c *command.Command, next int64) {
	exit := c.Exit()
	line, _ := json.Marshal(struct {
		Type       string  `json:"type"`
		Code       *int    `json:"code"`
		Signal     *string `json:"signal"`
		TimedOut   bool    `json:"timed_out"`
		NextOffset int64   `json:"next_offset"`
		DurationMS int64   `json:"duration_ms"`
	}{"exit", exit.Code, orNull(exit.Signal), exit.TimedOut, next, exit.Duration.Milliseconds()})
	s.line = append(s.line[:0], line[:len(line)-1]...)
	s.send()
}

// send ends the line and writes it.
func (s *stream) send() (ok bool) {
	s.line = append(s.line, '}', '\n')
	n, err := s.w.Write(s.line)
	if s.unflushed += n; s.unflushed >= flushAfter {
		s.flush()
	}
	return err == nil
}

func (s *stream) flush() {
	s.unflushed = 0
	s.w.(http.Flusher).Flush()
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
