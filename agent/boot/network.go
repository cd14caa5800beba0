package boot

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"space/agent/identity"
)

const (
	card    = "eth0"
	netmask = "255.255.255.252"
)

// ifreq is struct ifreq of netdevice(7): a name and a union of 24 bytes.
type ifreq struct {
	name [syscall.IFNAMSIZ]byte
	data [24]byte
}

// rtentry is struct rtentry of <linux/route.h>.
type rtentry struct {
	_       uintptr
	dst     sockaddr
	gateway sockaddr
	genmask sockaddr
	flags   uint16
	_       int16
	_       uintptr
	_       uintptr
	metric  int16
	device  *byte
	mtu     uintptr
	window  uintptr
	irtt    uint16
}

// sockaddr is struct sockaddr_in.
type sockaddr struct {
	family uint16
	port   uint16
	addr   [4]byte
	_      [8]byte
}

func inet(address string) (s sockaddr) {
	s.family = syscall.AF_INET
	copy(s.addr[:], net.ParseIP(address).To4())
	return s
}

// setUpNetwork gives the card its address and the default route. IPv6 is
// turned off before any link is up, so that not one packet of it is sent.
func setUpNetwork() error {
	for _, which := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv6/conf/" + which + "/disable_ipv6"
		if err := os.WriteFile(path, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := up(fd, "lo"); err != nil {
		return err
	}
	if err := waitForCard(fd); err != nil {
		return err
	}
	if err := setAddress(fd, syscall.SIOCSIFADDR, Address); err != nil {
		return err
	}
	if err := setAddress(fd, syscall.SIOCSIFNETMASK, netmask); err != nil {
		return err
	}
	if err := up(fd, card); err != nil {
		return err
	}
	route := rtentry{dst: inet("0.0.0.0"), genmask: inet("0.0.0.0"), gateway: inet(Gateway),
		flags: syscall.RTF_UP | syscall.RTF_GATEWAY}
	if err := ioctl(fd, syscall.SIOCADDRT, unsafe.Pointer(&route)); err != nil && err != syscall.EEXIST {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

func waitForCard(fd int) error {
	for deadline := time.Now().Add(deviceWait); ; time.Sleep(time.Millisecond) {
		request := named(card)
		err := ioctl(fd, syscall.SIOCGIFINDEX, unsafe.Pointer(&request))
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", card, err)
		}
	}
}

func setAddress(fd int, request uintptr, address string) error {
	r := named(card)
	*(*sockaddr)(unsafe.Pointer(&r.data)) = inet(address)
	if err := ioctl(fd, request, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("%s: %s: %w", card, address, err)
	}
	return nil
}

func up(fd int, name string) error {
	r := named(name)
	if err := ioctl(fd, syscall.SIOCGIFFLAGS, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	*(*uint16)(unsafe.Pointer(&r.data)) |= syscall.IFF_UP
	if err := ioctl(fd, syscall.SIOCSIFFLAGS, unsafe.Pointer(&r)); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	return nil
}

func named(name string) (r ifreq) {
	copy(r.name[:], name)
	return r
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// writeResolver names the gateway, the only resolver there is. A disk too full
// for that is the user's to clean up, for which the machine must be running.
func writeResolver() error {
	if err := identity.WriteIfChanged("/etc/resolv.conf", []byte("nameserver "+Gateway+"\n")); err != nil {
		Log("names will not resolve: %v", err)
	}
	return nil
}
