package boot

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const inNamespace = "SPACE_AGENT_TEST_NETNS"

// The test program runs a second time in a network namespace of its own, where
// one end of a veth pair plays the virtio card.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests set up a network: run them as root")
		os.Exit(1)
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inNamespace+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := again.Run(); err != nil {
		os.Exit(1)
	}
}

func TestNetwork(t *testing.T) {
	if out, err := exec.Command("ip", "link", "add", card, "type", "veth", "peer", "name", "outside").CombinedOutput(); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	defer exec.Command("ip", "link", "del", card).Run()
	if out, err := exec.Command("ip", "link", "set", "outside", "up").CombinedOutput(); err != nil {
		t.Fatalf("%s %v", out, err)
	}
	for round := 0; round < 2; round++ { // twice is as good as once
		if err := setUpNetwork(); err != nil {
			t.Fatal(err)
		}
	}
	eth, err := net.InterfaceByName(card)
	if err != nil {
		t.Fatal(err)
	}
	addresses, _ := eth.Addrs()
	if eth.Flags&net.FlagUp == 0 || len(addresses) != 1 || addresses[0].String() != Address+"/30" {
		t.Errorf("%v %v", eth, addresses)
	}
	routes, _ := os.ReadFile("/proc/self/net/route")
	// Destination 0.0.0.0, gateway 169.254.0.22 in the kernel's notation, up and a gateway.
	if !strings.Contains(string(routes), "eth0\t00000000\t1600FEA9\t0003\t") {
		t.Errorf("%s", routes)
	}
	if lo, err := net.InterfaceByName("lo"); err != nil || lo.Flags&net.FlagUp == 0 {
		t.Error(lo, err)
	}
	if v6, err := os.ReadFile("/proc/self/net/if_inet6"); err == nil && len(v6) > 0 {
		t.Errorf("IPv6 is on: %s", v6)
	}
}
