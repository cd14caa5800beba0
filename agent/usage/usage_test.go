package usage

import (
	"os"
	"path/filepath"
	"testing"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTicksAreBusyButForIdlenessAndWaiting(t *testing.T) {
	busy, total, err := processorTicks(file(t, "cpu  1 2 3 40 50 6 7 8 900 900\ncpu0 9 9 9\n"))
	if err != nil || busy != 27 || total != 117 {
		t.Fatalf("%d of %d, %v", busy, total, err)
	}
	if _, _, err := processorTicks(file(t, "cpu0 1 2 3 4 5 6\n")); err == nil {
		t.Fatal("a file of another form was read")
	}
}

func TestWhatCanBeTakenBackIsNotUsed(t *testing.T) {
	total, used, cached, err := memory(file(t,
		"MemTotal: 100 kB\nMemFree: 10 kB\nBuffers: 5 kB\nCached: 20 kB\nSReclaimable: 15 kB\n"))
	if err != nil || total != 100<<10 || used != 50<<10 || cached != 35<<10 {
		t.Fatalf("%d %d %d, %v", total, used, cached, err)
	}
}

func TestAMeterTellsOfTheTimeSinceItWasAsked(t *testing.T) {
	meter := New()
	for range [2]int{} {
		figures, err := meter.Measure()
		if err != nil || figures.Processor < 0 || figures.Processor > 100 {
			t.Fatalf("%+v, %v", figures, err)
		}
		if figures.Processors < 1 || figures.MemoryUsed > figures.Memory || figures.DiskUsed > figures.Disk {
			t.Fatalf("%+v", figures)
		}
	}
	busy, total, err := processorTicks("/proc/stat")
	if err != nil || meter.total > total || meter.busy > busy {
		t.Fatalf("the meter is ahead of the counters: %+v, %d, %d, %v", meter, busy, total, err)
	}
}
