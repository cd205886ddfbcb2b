//go:build tools

// Package versitygw pins the S3 server that models are fetched from in the
// cluster's tests: it checks signatures as Amazon does.
package versitygw

import _ "github.com/versity/versitygw/cmd/versitygw"
