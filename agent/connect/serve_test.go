package connect

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type word struct {
	Word string `json:"word"`
}

func frame(flags byte, message string) string {
	head := make([]byte, frameHead)
	head[0] = flags
	binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
	return string(head) + message
}

// frames takes a stream's answer apart.
func frames(t *testing.T, body io.Reader) (messages []string, end string) {
	t.Helper()
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(body, head[:]); err != nil {
			t.Fatalf("the stream ended without its last frame: %v", err)
		}
		data := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(body, data); err != nil {
			t.Fatal(err)
		}
		if head[0] == flagEnd {
			if rest, _ := io.ReadAll(body); len(rest) > 0 {
				t.Fatalf("after the last frame: %q", rest)
			}
			return messages, string(data)
		}
		messages = append(messages, string(data))
	}
}

func serve(t *testing.T, handler http.Handler) func(body io.Reader, header ...string) *http.Response {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return func(body io.Reader, header ...string) *http.Response {
		request, err := http.NewRequest("POST", server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			request.Header.Set(header[i], header[i+1])
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response
	}
}

// chunked hides a body's length, so that it is sent in chunks.
func chunked(text string) io.Reader { return io.MultiReader(strings.NewReader(text)) }

func TestUnary(t *testing.T) {
	call := serve(t, Unary(func(r *http.Request, q *word) (*word, error) {
		switch q.Word {
		case "missing":
			return nil, fmt.Errorf("wrapped: %w", Errorf(NotFound, "no <%s>", q.Word))
		case "broken":
			return nil, fmt.Errorf("oh")
		case "slow":
			<-r.Context().Done()
			return &word{"late"}, nil
		}
		return &word{q.Word + "!"}, nil
	}))
	for _, c := range []struct {
		body   io.Reader
		header []string
		status int
		want   string
	}{
		{strings.NewReader(`{"word":"<hi>"}`), nil, 200, `{"word":"<hi>!"}`},
		{chunked(`{"word":"hi"}`), []string{"Connect-Protocol-Version", "1", "Connect-Timeout-Ms", "9999999999"}, 200, `{"word":"hi!"}`},
		{strings.NewReader(``), nil, 200, `{"word":"!"}`},
		{strings.NewReader(`{"word":"missing"}`), nil, 404, `{"code":"not_found","message":"no <missing>"}`},
		{strings.NewReader(`{"word":"broken"}`), nil, 500, `{"code":"unknown","message":"oh"}`},
		{strings.NewReader(`{"word":"slow"}`), []string{"Connect-Timeout-Ms", "1"}, 504, `{"code":"deadline_exceeded","message":"the call did not end in the time it was given"}`},
		{strings.NewReader(`{"word":5}`), nil, 400, `{"code":"invalid_argument","message":"word: must be a string"}`},
		{strings.NewReader(`{}`), []string{"Connect-Timeout-Ms", "12345678901"}, 400, ""},
		{strings.NewReader(`{}`), []string{"Connect-Timeout-Ms", "-1"}, 400, ""},
		{strings.NewReader(`{}`), []string{"Connect-Protocol-Version", "2"}, 400, ""},
		{strings.NewReader(`{}`), []string{"Content-Type", "application/proto"}, 400, ""},
		{strings.NewReader(`{}`), []string{"Content-Encoding", "gzip"}, 501, ""},
		{io.LimitReader(zeros{}, maxMessage+1), nil, 429, ""},
	} {
		header := append([]string{"Content-Type", "application/json; charset=utf-8"}, c.header...)
		response := call(c.body, header...)
		got, _ := io.ReadAll(response.Body)
		if response.StatusCode != c.status || c.want != "" && string(got) != c.want || response.Header.Get("Content-Type") != unaryType || !json.Valid(got) {
			t.Errorf("%v: %d %s", c.header, response.StatusCode, got)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestServerStream(t *testing.T) {
	gone := make(chan struct{})
	call := serve(t, ServerStream(func(r *http.Request, q *word, out *Stream) error {
		out.Send(q)
		out.Flush()
		switch q.Word {
		case "fail":
			return Errorf(NotFound, "no")
		case "wait":
			<-r.Context().Done()
			if r.Context().Err() == context.Canceled {
				close(gone)
			}
			return r.Context().Err()
		}
		return out.Send(word{"second"})
	}))
	for body, want := range map[string]string{
		frame(0, `{"word":"a"}`):        `[{"word":"a"} {"word":"second"}] {}`,
		frame(0, `{"word":"fail"}`):     `[{"word":"fail"}] {"error":{"code":"not_found","message":"no"}}`,
		frame(0, `{"word":5}`):          `[] {"error":{"code":"invalid_argument","message":"word: must be a string"}}`,
		frame(1, `{"word":"a"}`):        `[] {"error":{"code":"unimplemented","message":"compression is not supported"}}`,
		frame(0, `{}`) + frame(0, `{}`): `[] {"error":{"code":"invalid_argument","message":"there is more than one message"}}`,
		"":                              `[] {"error":{"code":"invalid_argument","message":"the message is missing"}}`,
		frame(0, `{"word":"a"}`)[:9]:    `[] {"error":{"code":"canceled","message":"the request ended early"}}`,
		"\x00\xff\xff\xff\xff":          fmt.Sprintf(`[] {"error":{"code":"resource_exhausted","message":"a message must not be larger than %d bytes"}}`, maxMessage),
		frame(0, `{"word":"a"}`) + frame(flagEnd, `{}`): `[{"word":"a"} {"word":"second"}] {}`,
	} {
		response := call(chunked(body), "Content-Type", streamType)
		messages, end := frames(t, response.Body)
		if got := fmt.Sprint(messages, " ", end); response.StatusCode != 200 || response.Header.Get("Content-Type") != streamType || got != want {
			t.Errorf("%q: %d %s", body, response.StatusCode, got)
		}
	}
	response := call(strings.NewReader(frame(0, `{"word":"wait"}`)), "Content-Type", streamType, "Connect-Timeout-Ms", "20")
	if _, end := frames(t, response.Body); !strings.Contains(end, "deadline_exceeded") {
		t.Error(end)
	}
	response = call(strings.NewReader(frame(0, `{"word":"wait"}`)), "Content-Type", streamType)
	io.ReadFull(response.Body, make([]byte, frameHead))
	response.Body.Close()
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Error("nobody noticed that the client left")
	}
}

func TestClientStream(t *testing.T) {
	call := serve(t, ClientStream(func(r *http.Request, in *Receiver[word]) (*word, error) {
		var all bytes.Buffer
		for {
			q, err := in.Next()
			if err == io.EOF {
				return &word{all.String()}, nil
			}
			if err != nil {
				return nil, err
			}
			if q.Word == "stop" {
				return nil, Errorf(FailedPrecondition, "stopped")
			}
			all.WriteString(q.Word)
		}
	}))
	response := call(chunked(frame(0, `{"word":"a"}`)+frame(0, `{"word":"b"}`)), "Content-Type", streamType)
	if messages, end := frames(t, response.Body); fmt.Sprint(messages, end) != `[{"word":"ab"}]{}` {
		t.Error(messages, end)
	}
	// A refusal comes although the client goes on.
	body, sender := io.Pipe()
	go sender.Write([]byte(frame(0, `{"word":"stop"}`)))
	response = call(body, "Content-Type", streamType)
	if _, end := frames(t, response.Body); end != `{"error":{"code":"failed_precondition","message":"stopped"}}` {
		t.Error(end)
	}
	sender.Close()
}
