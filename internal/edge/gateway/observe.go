package gateway

import (
	"net/http"
	"time"
)

// What the forwarding tells of a request as it goes: sending, failed,
// answering and passed are called in this order, the first two once for every
// try. They never block and never fail; they are the only way that usage,
// metrics, the access log and traces learn of an upstream.

// observation is what is known of an exchange besides what forwarding needs.
type observation struct {
	begun     time.Time
	firstByte time.Time // of the answer's body; zero while there is none
	sent      int64     // bytes of the answer's body
	tries     int
	retried   string // why the last try that failed did
}

// sending says that the request is about to be sent to the granted replica.
func (x *exchange) sending() { x.seen.tries++ }

// failed says that the try failed before its answer began.
func (x *exchange) failed(err error) { x.seen.retried = err.Error() }

// answering says that a replica's answer begins: h is its header as the
// replica sent it, not to be kept or changed.
func (x *exchange) answering(status int, h http.Header) {}

// passed says that b, a part of a replica's answer, is about to be sent to the
// client. b is not to be kept.
func (x *exchange) passed(b []byte) {
	if x.seen.sent == 0 && len(b) > 0 {
		x.seen.firstByte = time.Now()
	}
	x.seen.sent += int64(len(b))
}
