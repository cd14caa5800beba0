package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// selfPatience bounds one request to ourselves.
const selfPatience = 2 * warmCommandS * time.Second

// self is a client of this very handler. It needs no token, because nobody else
// can be at the other end: the connection is a pair of sockets.
type self struct {
	conn   net.Conn
	reader *bufio.Reader
	served *pairListener
}

// connectSelf begins to serve one end of a pair and returns the other.
func (p *Public) connectSelf() (*self, error) {
	client, server, err := connectedPair()
	if err != nil {
		return nil, err
	}
	l := &pairListener{Conn: server, closed: make(chan struct{})}
	go newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := dispatch(p.routes, w, r); err != nil {
			writeProblem(w, err)
		}
	})).Serve(l)
	return &self{client, bufio.NewReader(client), l}, nil
}

// ask makes one request and reads all of its answer, whatever that is.
func (s *self) ask(method, path string, body []byte) (http.Header, error) {
	s.conn.SetDeadline(time.Now().Add(selfPatience))
	if _, err := fmt.Fprintf(s.conn, "%s %s HTTP/1.1\r\nHost: agent\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(s.reader, &http.Request{Method: method})
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.Header, err
}

func (s *self) close() {
	s.conn.Close()
	close(s.served.closed)
}

// connectedPair returns the two ends of a connection that nobody else can have.
func connectedPair() (one, other net.Conn, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if one, err = socketConn(pair[0]); err != nil {
		syscall.Close(pair[1])
		return nil, nil, err
	}
	if other, err = socketConn(pair[1]); err != nil {
		one.Close()
		return nil, nil, err
	}
	return one, other, nil
}

// socketConn owns fd even on error.
func socketConn(fd int) (net.Conn, error) {
	file := os.NewFile(uintptr(fd), "self")
	defer file.Close()
	return net.FileConn(file)
}

// pairListener has one connection to give.
type pairListener struct {
	net.Conn
	given  bool
	closed chan struct{}
}

func (l *pairListener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.Conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

// Close leaves the connection to the server.
func (l *pairListener) Close() error { return nil }

func (l *pairListener) Addr() net.Addr { return l.LocalAddr() }
