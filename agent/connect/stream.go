package connect

import (
	"encoding/binary"
	"io"
	"net/http"
)

// The flags of a frame's first byte.
const (
	flagCompressed = 1
	flagEnd        = 2
)

// frameHead is flags and length, before each message of a stream.
const frameHead = 5

// ServerStream serves a method of one message in and many out. Its status is
// always 200; how it ended is in the last frame.
func ServerStream[Q any](method func(r *http.Request, q *Q, out *Stream) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := newStream(w)
		out.end(func() error {
			r, cancel, err := admit(w, r, streamType)
			if err != nil {
				return err
			}
			defer cancel()
			in := Receiver[Q]{body: r.Body}
			q, err := in.Next()
			if err == io.EOF {
				return Errorf(InvalidArgument, "the message is missing")
			}
			if err != nil {
				return err
			}
			// Read to the end: only then the server notices that the client leaves.
			if _, err := in.Next(); err == nil {
				return Errorf(InvalidArgument, "there is more than one message")
			} else if err != io.EOF {
				return err
			}
			return method(r, q, out)
		}())
	})
}

// ClientStream serves a method of many messages in and one out.
func ClientStream[Q, A any](method func(r *http.Request, in *Receiver[Q]) (*A, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := newStream(w)
		out.end(func() error {
			r, cancel, err := admit(w, r, streamType)
			if err != nil {
				return err
			}
			defer cancel()
			answer, err := method(r, &Receiver[Q]{body: r.Body})
			if err != nil {
				// The client may go on sending for ever: it is answered now.
				w.Header().Set("Connection", "close")
				return err
			}
			return out.Send(answer)
		}())
	})
}

// Receiver reads the messages of a client.
type Receiver[Q any] struct{ body io.Reader }

// Next waits for a message; io.EOF says that there are no more.
func (in *Receiver[Q]) Next() (*Q, error) {
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(in.body, head[:]); err == io.EOF {
			return nil, io.EOF
		} else if err != nil {
			return nil, Errorf(Canceled, "the request ended early")
		}
		size := binary.BigEndian.Uint32(head[1:])
		switch {
		case head[0]&flagCompressed != 0:
			return nil, Errorf(Unimplemented, "compression is not supported")
		case size > maxMessage:
			return nil, tooLargeError()
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in.body, data); err != nil {
			return nil, Errorf(Canceled, "the request ended early")
		}
		if head[0]&flagEnd != 0 { // clients end by ending the body; one that says so is believed
			continue
		}
		q := new(Q)
		if err := decode(data, q); err != nil {
			return nil, err
		}
		return q, nil
	}
}

// Stream sends messages to a client.
type Stream struct {
	w     http.ResponseWriter
	begun bool
	err   error // of an earlier write: the client is gone
}

func newStream(w http.ResponseWriter) *Stream { return &Stream{w: w} }

// Send writes a message. It may wait in a buffer until Flush.
func (s *Stream) Send(v any) error { return s.frame(0, encode(v)) }

// Flush sends what waits.
func (s *Stream) Flush() {
	if s.err == nil {
		s.w.(http.Flusher).Flush()
	}
}

func (s *Stream) frame(flags byte, data []byte) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", streamType)
		s.w.Header().Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	if s.err != nil {
		return s.err
	}
	frame := make([]byte, frameHead, frameHead+len(data))
	frame[0] = flags
	binary.BigEndian.PutUint32(frame[1:], uint32(len(data)))
	_, s.err = s.w.Write(append(frame, data...))
	return s.err
}

// end sends the last frame.
func (s *Stream) end(err error) {
	var last struct {
		Error *Error `json:"error,omitempty"`
	}
	if err != nil {
		last.Error = asError(err)
	}
	s.frame(flagEnd, encode(last))
	s.Flush()
}
