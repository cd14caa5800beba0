package forward

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
)

// listening is the state of a socket that waits for connections, as
// /proc/net/tcp writes it.
const listening = "0A"

// scanner reads who listens. What it needs is kept from one scan to the next: a
// machine that does nothing else should neither work nor write for this.
type scanner struct {
	files    []*os.File
	summary  *os.File      // tells in one line how many sockets there are
	buffer   [4 << 10]byte // what the kernel gives at a time
	rest     []byte
	seen     []byte                // the summary at the last scan
	loopback map[uint16]netip.Addr // ports listened on only for programs inside, and where
}

// newScanner opens the lists of the network namespace that this program is in.
func newScanner() (s *scanner, err error) {
	s = &scanner{loopback: map[uint16]netip.Addr{}}
	if s.summary, err = os.Open("/proc/net/sockstat"); err != nil {
		return nil, err
	}
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, file)
	}
	return s, nil
}

// changed reports whether there are more or fewer sockets than at the last
// scan. That is a hundredth of the work: the lists make the kernel look through
// its whole table of connections, however empty. One socket in place of another
// goes unnoticed.
func (s *scanner) changed() bool {
	n, _ := s.summary.ReadAt(s.buffer[:], 0)
	if bytes.Equal(s.buffer[:n], s.seen) {
		return false
	}
	s.seen = append(s.seen[:0], s.buffer[:n]...)
	return true
}

// scan reads anew who listens.
func (s *scanner) scan() error {
	for port := range s.loopback {
		delete(s.loopback, port)
	}
	for _, file := range s.files {
		if err := s.read(file); err != nil {
			return err
		}
	}
	return nil
}

// read goes through one list as far as the listeners, which come first.
func (s *scanner) read(file *os.File) error {
	s.rest = s.rest[:0]
	for offset := int64(0); ; {
		n, err := file.ReadAt(s.buffer[:], offset)
		offset += int64(n)
		s.rest = append(s.rest, s.buffer[:n]...)
		left := s.rest
		for {
			line, rest, whole := bytes.Cut(left, []byte("\n"))
			if !whole {
				break
			}
			if more := s.line(line); !more {
				return nil
			}
			left = rest
		}
		s.rest = s.rest[:copy(s.rest, left)]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// line takes "slot: local:port remote:port state ...", in hexadecimal, and
// reports whether more listeners may follow.
func (s *scanner) line(line []byte) (more bool) {
	slot, line := field(line)
	if !bytes.HasSuffix(slot, []byte(":")) {
		return true // the heading
	}
	local, line := field(line)
	_, line = field(line)
	if state, _ := field(line); string(state) != listening {
		return false
	}
	address, digits, ok := bytes.Cut(local, []byte(":"))
	var number [2]byte
	if !ok || len(digits) != hex.EncodedLen(len(number)) {
		return true
	}
	if _, err := hex.Decode(number[:], digits); err != nil {
		return true
	}
	if inside := loopback(address); inside.IsValid() {
		s.loopback[binary.BigEndian.Uint16(number[:])] = inside
	}
	return true
}

func field(line []byte) (first, rest []byte) {
	line = bytes.TrimLeft(line, " ")
	first, rest, _ = bytes.Cut(line, []byte(" "))
	return first, rest
}

var (
	mapped  = []byte("0000000000000000FFFF0000")         // before an IPv4 address in an IPv6 one
	ownIPv6 = []byte("00000000000000000000000001000000") // ::1
)

// loopback reads an address, 32-bit numbers in the machine's byte order, and
// returns it if it is one that only programs inside reach.
func loopback(address []byte) (inside netip.Addr) {
	if bytes.Equal(address, ownIPv6) {
		return netip.IPv6Unspecified().Next() // ::1
	}
	address = bytes.TrimPrefix(address, mapped)
	var ip [4]byte
	if len(address) != hex.EncodedLen(len(ip)) || string(address[6:]) != "7F" {
		return inside
	}
	if _, err := hex.Decode(ip[:], address); err != nil {
		return inside
	}
	return netip.AddrFrom4([4]byte{ip[3], ip[2], ip[1], ip[0]})
}
