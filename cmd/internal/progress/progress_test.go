package progress

import (
	"strings"
	"testing"
	"time"
)

func TestLines(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	l := Lines{Out: &out, Name: "s3://models/iris", Now: func() time.Time { return now }}
	for range 25 {
		l.Fetch(now.Unix()<<20, 50<<20)
		now = now.Add(time.Second)
	}
	want := `s3://models/iris: 5.0 MiB of 50.0 MiB (10 %), 1.0 MiB/s
s3://models/iris: 10.0 MiB of 50.0 MiB (20 %), 1.0 MiB/s
s3://models/iris: 15.0 MiB of 50.0 MiB (30 %), 1.0 MiB/s
s3://models/iris: 20.0 MiB of 50.0 MiB (40 %), 1.0 MiB/s
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
