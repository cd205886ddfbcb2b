package gateway

import "testing"

// upstreamOfTests is the client that rigs use.
var upstreamOfTests = UpstreamOwn

// TestNetHTTP: with net/http's client everything is as with our own.
func TestNetHTTP(t *testing.T) {
	upstreamOfTests = UpstreamNetHTTP
	defer func() { upstreamOfTests = UpstreamOwn }()
	for name, test := range map[string]func(*testing.T){
		"retries": TestRetriesBeforeFirstByte, "events": TestEventsAreFlushedOneByOne, "failures": TestFailureWithinAnAnswer,
		"cancellation": TestCancellationReachesTheReplica, "silence": TestSilentReplica, "headers": TestHeaders,
		"slow client": TestClientThatStopsSending, "load": TestMixedLoad, "drain": TestStopDrains,
	} {
		t.Run(name, test)
	}
}
