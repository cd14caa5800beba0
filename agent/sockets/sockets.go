// Package sockets counts the connections that programs in the sandbox have with
// the world outside that came to them, as previews do. It reads what the kernel
// lists in /proc/net; the faster way, netlink, is a module that a guest lacks.
package sockets

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

const (
	established = "01"
	// dnsPort is the one thing that the sandbox itself dials at the peer's address.
	dnsPort = 53
)

// Inbound counts established connections whose other end is peer, but for those
// to the local ports own.
func Inbound(peer net.IP, own ...int) (int, error) {
	count := 0
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		n, err := inbound(path, kernelForm(peer), own)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		count += n
	}
	return count, nil
}

// kernelForm is how the kernel prints an IPv4 address: as a number of the
// machine's byte order. One seen through an IPv6 socket ends in the same digits.
func kernelForm(ip net.IP) []byte {
	var native [4]byte
	binary.LittleEndian.PutUint32(native[:], binary.BigEndian.Uint32(ip.To4()))
	return []byte(fmt.Sprintf("%X", native))
}

// inbound reads lines of "slot: local:port remote:port state ...", in hexadecimal.
func inbound(path string, peer []byte, own []int) (count int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 4 || string(fields[3]) != established {
			continue
		}
		address, remote, ok := cut(fields[2])
		if !ok || remote == dnsPort || !isPeer(address, peer) {
			continue
		}
		if _, local, ok := cut(fields[1]); ok && !contains(own, local) {
			count++
		}
	}
	return count, lines.Err()
}

func cut(field []byte) (address []byte, port int, ok bool) {
	address, text, ok := bytes.Cut(field, []byte(":"))
	if !ok {
		return nil, 0, false
	}
	n, err := strconv.ParseUint(string(text), 16, 16)
	return address, int(n), err == nil
}

// isPeer knows an IPv4 address, and the same one mapped into IPv6.
func isPeer(address, peer []byte) bool {
	switch len(address) {
	case hex.EncodedLen(net.IPv4len):
		return bytes.Equal(address, peer)
	case hex.EncodedLen(net.IPv6len):
		return bytes.HasPrefix(address, []byte("0000000000000000FFFF0000")) && bytes.HasSuffix(address, peer)
	}
	return false
}

func contains(ports []int, port int) bool {
	for _, one := range ports {
		if one == port {
			return true
		}
	}
	return false
}
