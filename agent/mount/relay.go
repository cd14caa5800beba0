package mount

import (
	"net"
	"os"
	"syscall"
)

// RelayMode is the first argument of an agent that relays one volume's requests. It
// is a process of its own, since the agent stands still between fork and exec of a
// command, whose own first steps may be requests.
const RelayMode = "relay"

const (
	self = "/proc/self/exe"

	requestsFD = 3 // /dev/fuse
	ordersFD   = 4 // where the agent sends connections
)

// relay is the process that relays for a mount, as the agent holds it.
type relay struct {
	id     string
	orders *net.UnixConn
}

// startRelay hands /dev/fuse to a process of its own.
func startRelay(id string, fuse int) (*relay, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(pair[1])
	ours, err := unixConn(pair[0])
	if err != nil {
		return nil, err
	}
	// who collects the agent's children collects this one, too
	_, err = syscall.ForkExec(self, []string{"agent", RelayMode}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{0, 1, 2, uintptr(fuse), uintptr(pair[1])}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	return &relay{id, ours}, nil
}

// ended says that it has ended, as it does when somebody unmounted the volume.
func (r *relay) ended() bool {
	raw, err := r.orders.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	raw.Read(func(fd uintptr) bool {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil
		return true
	})
	return gone
}

// attach sends it a connection.
func (r *relay) attach(conn net.Conn) error {
	raw, err := conn.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		return err
	}
	defer raw.Close()
	_, _, err = r.orders.WriteMsgUnix([]byte{1}, syscall.UnixRights(int(raw.Fd())), nil)
	return err
}

// Relay is the process: it ends when the volume is unmounted, or its agent has ended.
func Relay() int {
	os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	orders, err := unixConn(ordersFD)
	if err != nil {
		return 1
	}
	m := newMount(requestsFD)
	go func() {
		<-m.over
		os.Exit(0)
	}()
	for {
		conn, err := receive(orders)
		if err != nil {
			return 0
		}
		m.attach(conn)
	}
}

func receive(orders *net.UnixConn) (net.Conn, error) {
	message, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := orders.ReadMsgUnix(message, rights)
	if err != nil || n == 0 {
		return nil, net.ErrClosed
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:oobn])
	if err != nil || len(messages) != 1 {
		return nil, net.ErrClosed
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, net.ErrClosed
	}
	file := os.NewFile(uintptr(fds[0]), "server")
	defer file.Close()
	return net.FileConn(file)
}

func unixConn(fd int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), "orders")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
