module tollway.invalid/tools/framing-app

go 1.19
