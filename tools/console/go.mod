// Bundles the console's scripts and styles: a module of its own, since nothing
// else here needs it.
module roundhouse.dev/roundhouse/tools/console

go 1.26.0

require github.com/evanw/esbuild v0.28.2

require golang.org/x/sys v0.0.0-20220715151400-c0bba94af5f8 // indirect
