// Package peers is the ring that a cache of the Hub is a node of, as one node
// sees it: which nodes there are (a list, or a name that is looked up again and
// again), which of them answer, and which to ask for a blob; and the requests
// between nodes, signed with a secret that all of them have.
//
// A request carries the time, a nonce and an HMAC-SHA256 over those, the node it
// is for, method, path, range and source; the answer one over the nonce, its
// status and the headers that describe the body. So neither can be forged or
// sent to another node, and a request is accepted once. Bodies are not covered:
// content is verified by its hash.
package peers
