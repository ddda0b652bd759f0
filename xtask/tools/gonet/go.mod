module tollway.invalid/tools/gonet

go 1.19
