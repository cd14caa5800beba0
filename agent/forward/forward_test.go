package forward

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// The tests run in a network of their own, whose listeners are theirs alone.
const inside = "SPACE_FORWARD_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		must(loopbackUp())
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make a network namespace: run them as root")
		os.Exit(1)
	}
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), inside+"=1"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL},
	})
	must(err)
	state, err := child.Wait()
	must(err)
	os.Exit(state.ExitCode())
}

func loopbackUp() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	var request struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	request.flags = syscall.IFF_UP
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// card stands for the network card's address: all of 127/8 is on this machine.
var card = netip.AddrFrom4([4]byte{127, 9, 9, 9})

func start(t *testing.T) *Forwarder {
	f, err := New(card)
	must(err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f.Run(stop)
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	return f
}

func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !fact(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never came true: " + what)
		}
	}
}

// server answers what it is sent in capitals, when the sender has ended, and
// says what it saw.
func server(t *testing.T, address string) net.Listener {
	l, err := net.Listen("tcp", address)
	must(err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				data, _ := io.ReadAll(conn)
				conn.Write(bytes.ToUpper(data))
			}()
		}
	}()
	return l
}

func port4(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func dial(port int) (*net.TCPConn, error) {
	return net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(card, uint16(port))))
}

func open(port int) bool {
	conn, err := dial(port)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func TestLoopbackListenersAreReachedFromOutside(t *testing.T) {
	start(t)
	for _, address := range []string{"127.0.0.1:0", "127.0.1.1:0", "[::1]:0", "localhost:0"} {
		l := server(t, address)
		eventually(t, address+" is reached", func() bool { return open(port4(l)) })
		conn, err := dial(port4(l))
		must(err)
		// The end of one direction passes, and the other goes on.
		sent := bytes.Repeat([]byte("hello "), 200_000)
		go func() {
			conn.Write(sent)
			conn.CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, bytes.ToUpper(sent)) {
			t.Errorf("%s: %d bytes, %v", address, len(got), err)
		}
		conn.Close()
		l.Close()
		eventually(t, address+" is no longer reached", func() bool { return !open(port4(l)) })
		// Now somebody else can have the port, for everybody.
		var wide net.Listener
		eventually(t, "the port is free", func() bool {
			wide, err = net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port4(l)))
			return err == nil
		})
		wide.Close()
	}
}

func TestListenersForEverybodyAreLeftAlone(t *testing.T) {
	f := start(t)
	wide := server(t, "0.0.0.0:0")
	both := server(t, "[::]:0")
	mark := server(t, "127.0.0.1:0")
	eventually(t, "it has looked", func() bool { return open(port4(mark)) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ports) != 1 || f.ports[uint16(port4(mark))] == nil || f.ports[uint16(port4(wide))] != nil || f.ports[uint16(port4(both))] != nil {
		t.Error(f.ports)
	}
}

func TestManyListenersAreFound(t *testing.T) {
	s, err := newScanner()
	must(err)
	want := map[uint16]bool{}
	for i := 0; i < 300; i++ {
		want[uint16(port4(server(t, fmt.Sprintf("127.0.0.%d:0", 1+i%200))))] = true
	}
	for i := 0; i < 2; i++ {
		must(s.scan())
		for port := range want {
			if !s.loopback[port].IsValid() {
				t.Fatal("not found:", port)
			}
		}
	}
}

func TestDisconnectCutsWhatIsOpen(t *testing.T) {
	f := start(t)
	l := server(t, "127.0.0.1:0")
	eventually(t, "it is reached", func() bool { return open(port4(l)) })
	conn, err := dial(port4(l))
	must(err)
	defer conn.Close()
	conn.Write([]byte("x"))
	eventually(t, "it is carried", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.connections) == 1
	})
	f.Disconnect()
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Error("still connected:", err)
	}
	eventually(t, "others can connect", func() bool { return open(port4(l)) })
}

func TestScanningCostsNoMemory(t *testing.T) {
	s, err := newScanner()
	must(err)
	server(t, "0.0.0.0:0")
	must(s.scan())
	server(t, "127.0.0.1:0")
	if n := testing.AllocsPerRun(20, func() { s.changed(); s.scan() }); n > 0 {
		t.Errorf("%v allocations for each scan", n)
	}
}

func TestAChangeIsNoticed(t *testing.T) {
	s, err := newScanner()
	must(err)
	s.changed()
	if s.changed() {
		t.Error("a change without one")
	}
	l := server(t, "127.0.0.1:0")
	if !s.changed() {
		t.Error("a new listener is not noticed")
	}
	l.Close()
	if !s.changed() {
		t.Error("the end of a listener is not noticed")
	}
}

func BenchmarkChanged(b *testing.B) {
	s, err := newScanner()
	must(err)
	for i := 0; i < b.N; i++ {
		s.changed()
	}
}

func BenchmarkScan(b *testing.B) {
	s, err := newScanner()
	must(err)
	for i := 0; i < b.N; i++ {
		must(s.scan())
	}
}
