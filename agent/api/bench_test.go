package api

import (
	"io"
	"net/http"
	"sort"
	"strings"
	"testing"
	"time"
)

// BenchmarkCommand is a command's whole way, from request to exit line, on a
// kept connection. p50-us is the median in microseconds.
func BenchmarkCommand(b *testing.B) {
	for name, body := range map[string]string{
		"args": `{"args": ["true"]}`,
		"cmd":  `{"cmd": "true"}`,
		"echo": `{"args": ["echo", "x"]}`,
	} {
		b.Run(name, func(b *testing.B) {
			a := newAgent(b)
			b.ResetTimer()
			b.ReportAllocs()
			var took []time.Duration
			for i := 0; i < b.N; i++ {
				began := time.Now()
				r, err := a.client.Post(a.url+"/v1/commands", "application/json", strings.NewReader(body))
				if err != nil || r.StatusCode != http.StatusOK {
					b.Fatal(r, err)
				}
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-us")
		})
	}
}
